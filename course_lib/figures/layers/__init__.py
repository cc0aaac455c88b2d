"""The inside of one layer, whole or shared by several GPUs; experts."""
