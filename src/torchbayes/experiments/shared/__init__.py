"""What several claims share: problems with their HMC chains, modes, empirical Bayes, UCI splits."""
