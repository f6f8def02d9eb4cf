# Run by cpack when the files of both packages lie in its folder: makes of them what Debian's policy asks for.
set(root ${CPACK_TEMPORARY_DIRECTORY})
file(RENAME ${root}/program/usr/share/zsh/site-functions ${root}/program/usr/share/zsh/vendor-completions)
file(REMOVE ${root}/program/usr/share/doc/witan/LICENSE)

string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)  # of SOURCE_DATE_EPOCH, if it is set
foreach(package "program;witan" "development;witan-dev")
  list(GET package 0 component)
  list(GET package 1 name)
  set(docs ${root}/${component}/usr/share/doc/${name})
  file(MAKE_DIRECTORY ${docs})
  file(COPY_FILE ${CPACK_WITAN_COPYRIGHT} ${docs}/copyright)
  file(WRITE ${docs}/changelog
       "witan (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium\n\n  * Built from the sources of this version.\n\n"
       " -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
  file(GLOB_RECURSE plain ${docs}/changelog ${root}/${component}/usr/share/man/*.1)
  execute_process(COMMAND gzip -9nf ${plain} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
