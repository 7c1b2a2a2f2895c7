"""How close methods come to full-batch HMC, and whether its chains agree."""
