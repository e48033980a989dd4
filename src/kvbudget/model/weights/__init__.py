"""How many weights a model has, matrix by matrix, and how many bytes of them one rank holds."""
