"""Finding pictures in a folder by words or by another picture; duplicates and outliers among them."""
