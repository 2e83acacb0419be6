"""What a plan costs, on paper: nothing here compiles, runs or imports MindSpore."""
