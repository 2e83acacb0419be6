"""The fastest strategies that fit, of all that the rules allow; why others do not, and what would change that."""
