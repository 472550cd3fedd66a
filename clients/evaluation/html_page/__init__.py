"""An evaluation as one page of HTML that needs no network.

`notes` and `scores` gather what the plots and alignments need beyond `result.Evaluation`; `tables`, `plots` and
`conclusions` say what stands on the page; `page` fills the template. All figures are those of `as_json`.
"""
