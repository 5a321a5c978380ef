output "instance_id" {
  description = "The machine; null when there is none."
  value       = one(aws_instance.gpu[*].id)
}

output "availability_zone" {
  description = "Zone of the machine; null when there is none."
  value       = one(aws_instance.gpu[*].availability_zone)
}
