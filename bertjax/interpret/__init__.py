"""Inside a trained model: attention, word vectors, predictions of masked words."""
