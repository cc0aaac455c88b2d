"""What figures are drawn with: two kinds of paper, colours, words, arrows."""
