"""Texts as models read them: cleaning, tokens, and tokenizer files."""
