"""Word error rates and what stands behind them.

Everything but `command`, `run`, `reading`, `exports` and the printing is pure: it takes utterances, word by word, and
gives one value (`result.Evaluation`) that every rendering starts from. It knows nothing of files, HTTP or terminals.
"""
