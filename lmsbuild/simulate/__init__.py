"""What an iteration would take on another GPU, predicted from a recording of it."""
