output "launch_template_id" {
  description = "Launch template that a claim starts machines from."
  value       = aws_launch_template.node.id
}

output "launch_template_version" {
  description = "Newest version of the launch template."
  value       = aws_launch_template.node.latest_version
}

output "security_group_id" {
  description = "Security group of the machines."
  value       = aws_security_group.node.id
}

output "subnet_ids" {
  description = "Subnet of each usable zone: `{ us-east-1a = \"subnet-...\" }`."
  value = tomap(merge(
    { for zone, subnet in aws_subnet.own : zone => subnet.id },
    {
      for subnet in data.aws_subnet.default : subnet.availability_zone => subnet.id
      if length(var.zones) == 0 || contains(var.zones, subnet.availability_zone)
    },
  ))
}

output "vpc_id" {
  description = "VPC of the subnets."
  value       = local.vpc_id
}

output "image_id" {
  description = "Machine image that the launch template names."
  value       = local.image_id
}

output "role_name" {
  description = "Role of the machines; null without a bucket."
  value       = one(aws_iam_role.node[*].name)
}

output "instance_profile_arn" {
  description = "Instance profile of the machines; null without a bucket."
  value       = one(aws_iam_instance_profile.node[*].arn)
}
