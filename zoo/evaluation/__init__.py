"""Measures of features: linear probe, weighted kNN, learned centers; their metrics, tables and plots.

Everything here works on plain tensors and modules; what joins it to data sets and releases is `zoo.api`.
"""
