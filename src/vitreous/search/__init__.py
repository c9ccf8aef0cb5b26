"""Finding pictures in a folder by words or by another picture; and which of them are alike, or like no other."""
