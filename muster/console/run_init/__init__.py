"""`muster run init`: from a few answers to a run that exists, in a folder that says what each file is.

`choices` is what an owner says, `questions` asks for what was not said, `design` makes of it what the run will be, and
`table` what that means in money: these are pure. `folder` knows the paths and what was done, `parts` makes tasks, model
and calibration, `files` the settings and the README, `steps` the owner's steps on chain as commands, `owner` does them,
`command` is the whole. The same command resumes.
"""
