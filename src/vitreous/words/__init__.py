"""Texts as models read them: cleaning, tokens, and the files that tokenizers come in."""
