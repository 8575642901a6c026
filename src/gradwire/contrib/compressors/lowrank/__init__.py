"""Methods that send matrices as alternating factors, by sampled singular values, or by directions that ranks share."""
