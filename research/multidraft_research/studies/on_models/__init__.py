"""Studies of whole generations, one file each: the models decode every prompt in every way that is compared."""
