"""Trained models that teach others, live or by stored predictions."""
