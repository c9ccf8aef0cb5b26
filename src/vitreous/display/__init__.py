"""How results look: figures, tables, thumbnails, and HTML that is escaped by construction."""
