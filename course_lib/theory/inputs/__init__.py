"""What is trained, how and on what: the inputs of all other rooms."""
