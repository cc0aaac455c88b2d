"""What is checked of each part that the learner builds: one file for each build."""
