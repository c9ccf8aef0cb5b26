"""Any number of pictures through a model, in parts that are written whole or not at all."""
