"""What files of weights are called, in folders and on the hub."""

DOCUMENTS = ("config.json", "preprocessor_config.json", "open_clip_config.json")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "spiece.model")
WHOLE = ("model.safetensors", "pytorch_model.bin", "model.npz")  # by preference
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
ENDINGS = (".safetensors", ".npz", ".bin", ".pth", ".pt")
