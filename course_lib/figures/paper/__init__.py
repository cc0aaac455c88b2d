"""Drawing primitives: the SVG drawing, colours, text and arrows."""
