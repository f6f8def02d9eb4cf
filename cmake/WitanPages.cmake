# Has `program` print its manual page and its completions into the folder `pages`.
file(MAKE_DIRECTORY ${pages})
function(print to)
  execute_process(COMMAND ${program} ${ARGN} OUTPUT_FILE ${pages}/${to} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
print(witan.1 man)
foreach(shell bash zsh fish)
  print(witan.${shell} completions ${shell})
endforeach()
