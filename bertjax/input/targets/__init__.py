"""NumPy halves of the training objectives: the arrays that each adds to a batch. One file and registry line each."""
