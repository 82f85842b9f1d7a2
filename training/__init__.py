"""How the embedded pair was made: questions, tokenizer and training. Not part of the installed package."""
