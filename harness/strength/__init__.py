"""How strong the check itself is: mistakes that it must find."""
