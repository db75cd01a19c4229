"""Whether a second model, or a judge, pays: said on some 50 questions, before anything is calibrated."""
