"""What the tests of several rooms need: stand-ins for what is large, or far away."""
