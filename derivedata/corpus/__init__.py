"""Documents: what a corpus is made of, and how it is read and written without loss."""
