"""What goes on inside a trained model: attention, word vectors, masked words."""
