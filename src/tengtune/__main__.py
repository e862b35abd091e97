from tengtune.cli.main import main

main()
