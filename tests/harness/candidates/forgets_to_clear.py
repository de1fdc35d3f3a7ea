"""A V0 builder whose `prepare` clears all lists but one."""

from attnproof import reference


class CommonMetadataBuilder(reference.CommonMetadataBuilder):
    def prepare(self):
        kept = vars(self).get("prefill_seq_lens", [])
        super().prepare()
        self.prefill_seq_lens = kept
