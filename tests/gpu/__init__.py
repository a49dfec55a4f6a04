"""What is run once where a GPU is: stages that each leave a result."""
