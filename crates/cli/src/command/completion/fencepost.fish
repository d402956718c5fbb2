# Completes fencepost in fish. `fencepost completion fish` prints this.

function __fencepost_candidates
    fencepost complete-words -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token) 2> /dev/null
end

# After -- stands the command of `run`: fish completes it as files.
complete --command fencepost --no-files --condition 'not contains -- -- (commandline --current-process --tokenize --cut-at-cursor)' \
    --arguments '(__fencepost_candidates)'
