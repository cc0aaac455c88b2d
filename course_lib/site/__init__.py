"""The course as web pages: notebooks with their outputs, and panels that move without a kernel.

`building` makes the pages, `python` what moves panels on them, `packed` is the copy in a wheel.
"""
