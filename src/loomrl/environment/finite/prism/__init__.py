"""Models in the PRISM language (https://www.prismmodelchecker.org/manual/ThePRISMLanguage)."""
