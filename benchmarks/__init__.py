"""Generated kernels against what a user would pick instead, in one run on one GPU. See README.md."""
