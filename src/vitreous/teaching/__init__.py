"""Trained models that teach others, asked live or once for all."""
