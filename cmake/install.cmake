# What `cmake --install` puts where: the programs, their manual pages, completion for three shells. Pages and scripts
# are made by the programs, of their tables and their help.
include(GNUInstallDirs)
set(manual ${PROJECT_BINARY_DIR}/manual)

# cairn_made(FILE LINE TARGETS...): manual/FILE is what a line of shell prints, with these programs.
function(cairn_made file line)
    add_custom_command(OUTPUT ${manual}/${file}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${manual}
        COMMAND ${CMAKE_COMMAND} -E env CAIRN_HOME=${manual} sh -c "${line} > ${manual}/${file}"
        DEPENDS ${ARGN} VERBATIM)
endfunction()

set(bin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
cairn_made(cairn.1 "'${bin}/cairn' manual" cairn)
cairn_made(cairnd.8 "'${bin}/cairnd' --help | '${bin}/cairn' manual cairnd 'the coordinator of Cairn'" cairn cairnd)
cairn_made(cairn-agent.8
    "'${bin}/cairn-agent' --help | '${bin}/cairn' manual cairn-agent 'the agent of Cairn on a machine'" cairn cairn-agent)
cairn_made(cairn-observer.8
    "'${bin}/cairn-observer' --help | '${bin}/cairn' manual cairn-observer 'the page of Cairn'" cairn cairn-observer)
cairn_made(cairn-trainer.8
    "'${bin}/cairn-trainer' --help | '${bin}/cairn' manual cairn-trainer 'a worker of Cairn'" cairn cairn-trainer)
foreach(shell bash zsh fish)
    cairn_made(cairn.${shell} "'${bin}/cairn' completion ${shell}" cairn)
endforeach()
add_custom_target(manual ALL DEPENDS ${manual}/cairn.1 ${manual}/cairnd.8 ${manual}/cairn-agent.8
    ${manual}/cairn-observer.8 ${manual}/cairn-trainer.8 ${manual}/cairn.bash ${manual}/cairn.zsh ${manual}/cairn.fish)

install(TARGETS cairn cairnd cairn-agent cairn-trainer cairn-observer)
if(TARGET cairn-cuda) # the trainer looks for it there (kernels/module.h)
    install(TARGETS cairn-cuda LIBRARY DESTINATION lib/cairn)
endif()
install(FILES ${manual}/cairn.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${manual}/cairnd.8 ${manual}/cairn-agent.8 ${manual}/cairn-observer.8 ${manual}/cairn-trainer.8
    DESTINATION ${CMAKE_INSTALL_MANDIR}/man8)
install(FILES ${manual}/cairn.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME cairn)
install(FILES ${manual}/cairn.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions RENAME _cairn)
install(FILES ${manual}/cairn.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
