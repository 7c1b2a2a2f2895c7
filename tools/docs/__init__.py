"""Checks that the pages agree with the code: names, keywords, commands, files, links, and what must be mentioned.

`python -m tools.docs [ROOT]` reads README.md, CHANGELOG.md, CONTRIBUTING.md, docs/ and the docstrings in src/, and
prints one line per fault.

pages       what a page holds: blocks of code, inline code, links, headings
names       inline code and Python blocks: modules, classes, functions, keyword arguments, words for choices
docstrings  inline code in the docstrings of the package
commands    lines for the shell: options by the real parser, `make` targets, modules, runs that must be there before
prose       sentences and paragraphs that are too long
places      files, links, anchors, the navigation, and what some page has to name
"""
