"""Any number of pictures through a model: cut into parts, each of them written whole or not at all."""
