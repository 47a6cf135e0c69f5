"""Loading Hugging Face models and finding their blocks."""
