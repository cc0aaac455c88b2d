"""What figures are drawn with: one painter, colours, words, arrows."""
