"""Keys, signatures, passphrases and encrypted files: who said what, and who may read it."""
