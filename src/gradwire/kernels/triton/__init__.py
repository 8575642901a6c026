"""GPU kernels, one file for each operation, of the same name, with a function of that name and signature.

1. A kernel gives the bits of the operation's plain-torch reference. Hence no product is fused with a sum (``_launch``),
   divisions are ``tl.div_rn``, and magnitudes are compared as the integers their bits form.
2. Nothing waits for the GPU and nothing allocates as much as a gradient.
3. The dispatcher has checked the arguments; a file is imported when its operation first meets a CUDA tensor.
"""
