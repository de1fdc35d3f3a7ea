"""Programs that reproduce a finding without attnproof."""
